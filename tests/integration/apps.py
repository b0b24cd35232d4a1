import torch
from ray import serve
from serve_warm import Input, WarmupMixin, Buckets, shape_grid
OPT = dict(ray_actor_options={"num_cpus": 0}, graceful_shutdown_timeout_s=0, max_constructor_retry_count=1)

def double(x):
    return x * 2

@serve.deployment(**OPT)
class Plain(WarmupMixin):
    def __init__(self):
        self.model = torch.compile(double, backend="eager", dynamic=False)
    def warmup_inputs(self):
        return [Input(target=self.embed, args=(torch.ones(n),), name=f"n={n}", size=n) for n in (1, 2)]
    async def embed(self, x):
        return self.model(x)

@serve.deployment(**OPT)
class Bad(Plain.func_or_class):
    def warmup_inputs(self):
        raise KeyError("weights")
