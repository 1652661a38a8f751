"""The probability of recovery from memory, and the numbers of replicas and spare servers that follow from
it."""
