"""What every room stands on: the blocks that results say what they are with."""
