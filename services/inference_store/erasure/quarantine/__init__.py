"""Dead letters and parked events of what is erased: finding them, and removing them."""
