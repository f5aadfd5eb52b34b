"""Estimate the memory that training needs and plan where it goes."""
