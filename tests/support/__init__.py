"""Things the tests share. `gloo` runs a function on real ranks, `compare` runs graphs on them."""
