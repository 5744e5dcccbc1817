"""History in trainers: callbacks for Transformers and Lightning, and a loop of Accelerate.

    pip install transformers pytorch-lightning accelerate

Each switches a schedule on: every 100th step is observed, the others run as if Amanda was not there. Without a callback,
three lines do the same around any trainer:

    history = History(model, tensorboard="runs/1")
    with amanda.scheduled(history, schedule=amanda.Schedule(every=100), steps=register_optimizer_step_post_hook):
        trainer.train()

That also closes the files if the training raises. The Trainer of Transformers calls no callback then.
"""

import amanda
import pytorch_lightning as lightning
import transformers
from amanda.tools.history import History
from torch.optim.optimizer import register_optimizer_step_post_hook


class TransformersHistory(transformers.TrainerCallback):
    """``Trainer(..., callbacks=[TransformersHistory(every=100, tensorboard="runs/1")])``"""

    def __init__(self, every=1, **options):
        self.history, self.schedule = History(**options), amanda.Schedule(every=every)

    def on_train_begin(self, args, state, control, model, **others):
        self.history.watch(model)
        self.scope = amanda.scheduled(self.history, schedule=self.schedule, first_step=state.global_step)
        self.scope.__enter__()

    def on_step_end(self, args, state, control, **others):
        self.scope.step()

    def on_train_end(self, args, state, control, **others):
        self.scope.__exit__(None, None, None)


class LightningHistory(lightning.Callback):
    """``Trainer(..., callbacks=[LightningHistory(every=100, tensorboard="runs/1")])``"""

    def __init__(self, every=1, **options):
        self.history, self.schedule = History(**options), amanda.Schedule(every=every)

    def on_train_start(self, trainer, module):
        self.history.watch(module)
        self.scope = amanda.scheduled(self.history, schedule=self.schedule, steps=register_optimizer_step_post_hook)
        self.scope.__enter__()

    def on_train_end(self, trainer, module):
        self.scope.__exit__(None, None, None)

    def on_exception(self, trainer, module, exception):
        self.scope.__exit__(type(exception), exception, exception.__traceback__)


def train_with_accelerate(accelerator, model, optimizer, batches, loss_of, every=1, **options):
    """Accelerate has loops in place of callbacks. An optimizer that it has prepared steps when gradients are complete."""
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    history = History(model, **options)
    schedule = amanda.Schedule(every=every)
    with amanda.scheduled(history, schedule=schedule, steps=register_optimizer_step_post_hook):
        for batch in batches:
            with accelerator.accumulate(model):
                loss = loss_of(model, batch)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                history.log(loss=loss)
                optimizer.step()
                optimizer.zero_grad()
    return history
