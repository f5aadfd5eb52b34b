"""Parts of a rubric: what each looks at, and its options."""
