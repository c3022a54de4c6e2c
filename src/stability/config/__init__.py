"""What a run is: every knob, its legal range, the rules between knobs, a run's identity."""
