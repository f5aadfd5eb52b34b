"""Math problems that are easy with code and hard without."""
