"""Training loops of users: what they compute equals one device."""
