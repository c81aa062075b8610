"""What runs in the chief: the updates, and the decisions which worker does what when."""
