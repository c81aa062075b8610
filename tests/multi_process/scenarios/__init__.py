"""What ranks do together; each function returns what its rank found out, as JSON would hold it."""
