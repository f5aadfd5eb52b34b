"""Two arms: a small sure pay and a rare large one."""
