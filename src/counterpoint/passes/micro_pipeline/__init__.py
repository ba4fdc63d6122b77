"""What the pass micro-pipeline-tp recognises, how it chooses, and how it rewrites."""
