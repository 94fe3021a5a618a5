"""The Open Inference Protocol (V2) over REST, and the tensors that both transports share."""
