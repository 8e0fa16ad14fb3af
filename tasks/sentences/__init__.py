"""What was found, in plain English: numbers in, one short sentence out."""
