"""Identification: captured rows -> observed wiring, with margins and confidence."""

from featurecontract.identify._observe import identify

__all__ = ["identify"]
