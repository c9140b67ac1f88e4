"""The deterministic engine: Gaussian integrals and Hermite series, where the state enters affinely."""
