"""What every subpackage stands on: the blocks that results say what they are with."""
