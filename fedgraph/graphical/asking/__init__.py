"""What a graphical model says when it is asked: rows of its joint distribution, and what follows from what is known."""
