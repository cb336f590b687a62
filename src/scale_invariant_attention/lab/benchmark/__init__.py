"""Speed and memory of the op, side by side with its rivals: measured, recorded, drawn, written up."""
