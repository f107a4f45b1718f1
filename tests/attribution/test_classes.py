"""Tests for commbench.attribution.classes: by rooflines of a line of arithmetic, and by names that tools give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.attribution.ceilings import Ceilings
from commbench.attribution.classes import (
    COMPUTE_WORK,
    EVIDENCE,
    LATENCY_BOUND,
    MEMORY_WORK,
    NAME,
    NEITHER,
    NONE,
    ROOFLINE,
    classify,
)
from commbench.attribution.trace import ANNOTATION, KERNEL, MEMCPY, MEMSET, OPERATOR, RUNTIME, Call, Operator, Trace
from tests.attribution.making import Span, trace

KNOWN = Ceilings(bandwidth=1e12, flops={"float32": 1e13, "tf32": 1e14, "bfloat16": 2e14})
GEMM = "ampere_sgemm_128x64_nn"


def mm(rows: int, inner: int, columns: int, dtype: str = "float") -> Operator:
    return Operator("aten::mm", ((rows, inner), (inner, columns)), (dtype, dtype))


def verdicts(made: Trace, ceilings: Ceilings = KNOWN) -> list[tuple[int, str, bool]]:
    found = classify(made, ceilings)
    return [
        (int(work), EVIDENCE[place], bool(latency))
        for work, place, latency in zip(found.work, found.evidence, found.latency_bound, strict=True)
    ]


def verdict(span: Span, ceilings: Ceilings = KNOWN, device: str = "cuda") -> tuple[int, str, bool]:
    return verdicts(trace([span], device=device), ceilings)[0]


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096), st.sampled_from(("float", "c10::BFloat16")))
def test_a_product_is_bound_by_what_takes_it_longer(rows: int, inner: int, columns: int, dtype: str) -> None:
    size, rate = (4, 1e13) if dtype == "float" else (2, 2e14)
    arithmetic = 2 * rows * inner * columns / rate
    memory = size * (rows * inner + inner * columns + rows * columns) / 1e12
    lasted = 1_000_000
    assert verdict(Span(0, lasted, name=GEMM, operator=mm(rows, inner, columns, dtype))) == (
        COMPUTE_WORK if arithmetic >= memory else MEMORY_WORK,
        ROOFLINE,
        max(arithmetic, memory) < LATENCY_BOUND * lasted / 1e9,
    )


def test_float32_in_matrix_units_has_their_ceiling() -> None:
    square = mm(100, 100, 100)  # 16.7 FLOP/byte: above 10, below 100
    assert verdict(Span(0, 10, name=GEMM, operator=square))[0] == COMPUTE_WORK
    assert verdict(Span(0, 10, name="cutlass_80_tensorop_s1688gemm_256x64", operator=square))[0] == MEMORY_WORK


@pytest.mark.parametrize(
    "ceilings", [Ceilings(), Ceilings(flops=KNOWN.flops), Ceilings(bandwidth=1e12, flops={"bfloat16": 1e14})]
)
def test_without_a_ceiling_the_name_tells(ceilings: Ceilings) -> None:
    thin = mm(1, 4096, 4096)
    assert verdict(Span(0, 10, name=GEMM, operator=thin), ceilings) == (COMPUTE_WORK, NAME, False)
    assert verdict(Span(0, 10, name=GEMM, operator=thin)) == (MEMORY_WORK, ROOFLINE, False)


def test_what_only_moves_bytes_needs_no_arithmetic() -> None:
    add = Operator("aten::add", ((1000, 1000), (1000, 1000)), ("float", "float"))  # 12 us
    only_bandwidth = Ceilings(bandwidth=1e12)
    named = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
    assert verdict(Span(0, 20_000, name=named, operator=add), only_bandwidth) == (MEMORY_WORK, ROOFLINE, False)
    assert verdict(Span(0, 50_000, operator=add), only_bandwidth) == (MEMORY_WORK, ROOFLINE, True)


def test_kernels_of_one_launch_share_what_it_takes() -> None:
    """A product of 20 us in two kernels of 40 us each is a quarter of their time; each launch is taken by itself."""
    product = mm(1000, 100, 1000)
    spans = [
        Span(0, 10, kind=OPERATOR, name="aten::mm", operator=product),
        Span(20, 30, kind=OPERATOR, name="aten::mm", operator=product),
        Span(1_000, 41_000, name=GEMM, launched=5, operator=product),
        Span(41_000, 81_000, name=GEMM, launched=6, operator=product),
        Span(81_000, 121_000, name=GEMM, launched=25, operator=product),
    ]
    assert verdicts(trace(spans, device="cuda"))[2:] == [
        *[(COMPUTE_WORK, ROOFLINE, True)] * 2,
        (COMPUTE_WORK, ROOFLINE, False),
    ]
    other = Span(0, 10, kind=OPERATOR, name="aten::mm", operator=mm(1, 1, 1))
    for before in ([], [other]):  # where the operator's own spans are not seen, each kernel is a launch
        unseen = trace([*before, *spans[2:]], device="cuda")
        assert [latency for _, _, latency in verdicts(unseen)[len(before) :]] == [False] * 3


def test_a_helper_of_a_product_is_classed_by_its_name() -> None:
    product = mm(4096, 4096, 4096)
    helper = "void cublasLt::splitKreduce_kernel<32, 16, int, float>"
    assert verdict(Span(0, 100, name=helper, operator=product)) == (MEMORY_WORK, NAME, False)
    assert verdict(Span(0, 100, name="Kernel2", operator=product)) == (COMPUTE_WORK, ROOFLINE, False)


@pytest.mark.parametrize(
    ("name", "work", "evidence"),
    [
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nt_align4>(...)", COMPUTE_WORK, NAME),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc", COMPUTE_WORK, NAME),
        ("cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1", COMPUTE_WORK, NAME),
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", COMPUTE_WORK, NAME),
        ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3", COMPUTE_WORK, NAME),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausal", COMPUTE_WORK, NAME),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64", COMPUTE_WORK, NAME),
        ("miopenSp3AsmConv_v21_1_2_gfx9_fp32_stride1", COMPUTE_WORK, NAME),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", COMPUTE_WORK, NAME),
        ("triton_tem_fused_mm_12", COMPUTE_WORK, NAME),
        ("triton_poi_fused_addmm_gelu_mm_3", MEMORY_WORK, NAME),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>", MEMORY_WORK, NAME),
        ("void vllm::fused_add_rms_norm_kernel<vllm::_typeConvert<c10::BFloat16>::exists>", MEMORY_WORK, NAME),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", MEMORY_WORK, NAME),
        ("void fbgemm_gpu::permute_2D_data_kernel<false, int>", MEMORY_WORK, NAME),
        ("void moe::dev::finalize::finalizeKernelVecLoad<cutlass::bfloat16_t>", MEMORY_WORK, NONE),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>", MEMORY_WORK, NAME),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 128, true, 1>", MEMORY_WORK, NAME),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>>", MEMORY_WORK, NAME),
        ("void gemv2T_kernel_val<int, int, float, float, float>", MEMORY_WORK, NAME),
        ("my_own_kernel", MEMORY_WORK, NONE),
    ],
)
def test_names_of_kernels(name: str, work: int, evidence: str) -> None:
    assert verdict(Span(0, 10, name=name)) == (work, evidence, False)


@pytest.mark.parametrize("kind", [MEMCPY, MEMSET])
def test_copies_and_fills_are_memory(kind: int) -> None:
    name = "Memset (Device)" if kind == MEMSET else "Memcpy DtoD (Device -> Device)"
    assert verdict(Span(0, 10, kind=kind, name=name)) == (MEMORY_WORK, NAME, False)


def test_beside_a_device_the_host_does_no_work_and_communication_is_none() -> None:
    spans = [
        Span(0, 9, kind=OPERATOR, name="aten::mm", operator=mm(9, 9, 9)),
        Span(1, 9, kind=RUNTIME, name="cudaLaunchKernel"),
        Span(2, 9, kind=KERNEL, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", call=0),
        Span(3, 9, kind=MEMCPY, name="Memcpy DtoD", call=0),
    ]
    assert [work for work, _, _ in verdicts(trace(spans, [Call("allreduce")], device="cuda"))] == [NEITHER] * 4


@pytest.mark.parametrize(
    ("name", "work", "evidence"),
    [
        ("aten::addmm", COMPUTE_WORK, NAME),
        ("aten::mkldnn_convolution", COMPUTE_WORK, NAME),
        ("aten::convolution_backward", COMPUTE_WORK, NAME),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", COMPUTE_WORK, NAME),
        ("aten::mul_", MEMORY_WORK, NAME),
        ("aten::_foreach_addcdiv_", MEMORY_WORK, NAME),
        ("aten::native_batch_norm", MEMORY_WORK, NAME),
        ("fbgemm::permute_sparse_features", MEMORY_WORK, NAME),
        ("mine::thing", MEMORY_WORK, NONE),
        ("aten::view", NEITHER, NONE),
        ("aten::as_strided", NEITHER, NONE),
        ("aten::empty_strided", NEITHER, NONE),
        ("aten::t", NEITHER, NONE),
        ("detach", NEITHER, NONE),
        ("AddmmBackward0", NEITHER, NONE),
        ("autograd::engine::evaluate_function: AddmmBackward0", NEITHER, NONE),
        ("torch::autograd::AccumulateGrad", NEITHER, NONE),
        ("torch.distributed.ddp.reducer::copy_bucket_to_grad", NEITHER, NONE),
        ("c10d::allreduce_", NEITHER, NONE),
        ("record_param_comms", NEITHER, NONE),
        ("DistributedDataParallel.forward", NEITHER, NONE),
        ("Optimizer.step#AdamW.step", NEITHER, NONE),
    ],
)
def test_names_of_operators_without_a_device(name: str, work: int, evidence: str) -> None:
    assert verdict(Span(0, 10, kind=OPERATOR, name=name), device="cpu") == (work, evidence, False)


def test_without_a_device_operators_have_rooflines_and_annotations_are_no_work() -> None:
    spans = [
        Span(0, 10_000, kind=OPERATOR, name="aten::mm", operator=mm(100, 100, 100)),
        Span(1, 9, kind=ANNOTATION, name="aten::mm"),
    ]
    assert verdicts(trace(spans, device="cpu")) == [(COMPUTE_WORK, ROOFLINE, True), (NEITHER, NONE, False)]


def test_a_trace_without_spans_has_no_classes() -> None:
    found = classify(trace([]), KNOWN)
    assert [len(column) for column in (found.work, found.evidence, found.latency_bound)] == [0, 0, 0]
    assert found.work.dtype == np.uint8
