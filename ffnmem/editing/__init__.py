"""Editing: second moments of coefficients, the edits that they shape, and what an edit changes."""
