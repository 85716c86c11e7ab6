"""The model of `client_programs` as Lightning trains it."""

import lightning
import torch
from client_programs import BATCH, EPOCHS, Model, data, loss
from torch import Tensor
from torch.utils.data import DataLoader

from dagfisher import DAGNaturalGradient


class Module(lightning.LightningModule):
    """A model, its loss and its optimizer; nothing here knows of processes."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        return loss(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return DAGNaturalGradient(self.parameters())


def trained(strategy: str, processes: int) -> Model | None:
    """The model after training, in the first process."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=processes,
        strategy=strategy,
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    trainer.fit(module, DataLoader(data(), batch_size=BATCH // processes))
    return module.model if trainer.is_global_zero else None
