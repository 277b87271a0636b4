"""The kernel's side: start torchrun or another command, watch it, stop it, bring its results back."""
