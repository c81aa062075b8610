"""What runs in the chief: who does what when, and the updates."""
