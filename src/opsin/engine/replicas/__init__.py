"""Several engines that serve the same model, behind the contract of one: routing, ejection, drain, retries."""
