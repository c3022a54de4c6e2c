"""What figures are drawn with: lines, panels, colours, scales, heat maps, files."""
