"""The one intermediate form: index expressions, hash-consed values, kernels, loop programs."""
