"""Models that owners have of their own: trained once, then frozen, and read at their embeddings (F3, section 2).

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023).
"""
