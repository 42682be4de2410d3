"""Python processes that start at once, because they are forked from one that has imported what they need."""
