"""Search a small web shop and buy the product that an instruction describes."""
