"""What is seen of a run while it trains: numbers of each rank, and views of them."""
