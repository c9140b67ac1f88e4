"""How far a recurrent network sees before it is trained, and a start that sees as far as the data needs."""
