"""What a diagnosis says to people: in the terminal, as figures, as a page."""
