"""A machine that is about to go, as its jobs live through it: who is here, who is told, what they answer, what becomes of them."""
