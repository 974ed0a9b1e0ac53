"""Small pure models of what many threads and machines do at once, explored over all orders."""
