"""The reading half of gpuwarden: collectors return facts, they never judge and never act."""
