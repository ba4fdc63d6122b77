"""What `passes/comm_lowering.py` is made of: reading a collective as a call with ways (`calls`), the choice (`choice`),
dead inputs (`dead`) and the rewriting (`rewrite`)."""
