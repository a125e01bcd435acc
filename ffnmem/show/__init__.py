"""A sheet on a terminal, in a notebook, as Markdown and as data. Knows no result."""
