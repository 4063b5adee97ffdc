"""Traces as a GPU would leave them: kernels in the order in which `speculation` and `models` launch them."""

from __future__ import annotations

from dataclasses import dataclass, field

from outpace.lab.profile.wall import Ran

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_kernel__5x_cublas"
INDEX = "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<...>>(long, ...)"
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<...>(...)"


@dataclass
class Trace:
    """Kernels one behind another; each begins `early` before the one before it ends, as overlapped launches do."""

    early: float = 0.0
    now: float = 100.0
    rows: list[Ran] = field(default_factory=list)

    def run(self, name: str, length: float, *, after: float = 0.0) -> None:
        """`length` is what it adds to the wall-clock time, `after` the time before it when nothing runs."""
        began = self.now + after if after else self.now - self.early
        self.now += after + length
        self.rows.append(Ran(name, began, self.now))

    def forward(self, layers: int, *, head: float, gap: float = 0.0) -> None:
        self.run("_places", 2.0, after=gap)
        self.run("_angles", 1.0)
        for _ in range(layers):
            self.run("_add_rms_norm", 3.0)
            self.run("_multiply", 20.0)
            self.run("_decode", 10.0, after=gap)
            self.run("_multiply", 15.0)
            self.run("_add_rms_norm", 3.0)
            self.run("_multiply", 40.0)
            self.run("_multiply", 30.0)
        self.run("_add_rms_norm", 3.0)
        self.run("_multiply", head)

    def cycle(self, k: int, layers: int = 2, *, between: float = 7.0, gap: float = 0.0) -> None:
        """`between` before its inputs are copied, and a microsecond after that."""
        self.run("Memcpy HtoD (Pinned -> Device)", 1.0, after=between)
        self.run(INDEX, 2.0, after=1.0)
        for _ in range(k):
            self.forward(1, head=50.0, gap=gap)
            self.run("_best_of_split", 4.0)
            self.run("_best_of_all", 1.0)
        self.run(CAT, 2.0)
        self.forward(layers, head=90.0, gap=gap)
        if k:
            self.run("_multiply", 12.0)
            self.run("_keep_boundaries", 1.0)
        self.run("_best_of_split", 4.0)
        self.run("_best_of_all", 1.0)
        self.run("_settle", 2.0)
        if k:
            self.run(INDEX, 2.0)
        self.run("Memcpy DtoH (Device -> Pinned)", 1.0)
