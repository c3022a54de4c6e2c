"""All parts that a run can be built of: equation, source, what is reported, what each costs."""
