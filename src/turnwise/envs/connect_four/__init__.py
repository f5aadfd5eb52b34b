"""Four in a row with pieces that fall, against a scripted opponent."""
