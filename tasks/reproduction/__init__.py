"""The papers' experiments: their laws, their pictures, and what is said of each of their claims."""
