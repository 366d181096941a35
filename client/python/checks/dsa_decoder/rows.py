"""Rows of a decoder's cache: how a token's key is packed, and read again."""
import torch

LATENT, ROPE = 512, 64
ROW_WIDTH = LATENT + ROPE  # of bf16
FP8_ROW_BYTES = 656
_SCALE_GROUP = 128
_FP8_MAX = 448.0


def row_width(kv_dtype):
    return FP8_ROW_BYTES if kv_dtype == "fp8_ds_mla" else ROW_WIDTH


def pack(keys, kv_dtype):
    """float32 [n, 576] -> rows: bf16 [n, 576], or bytes [n, 656]: 512 fp8 values, a float scale
    for each 128 of them, 64 bf16."""
    if kv_dtype == "bfloat16":
        return keys.to(torch.bfloat16)
    latent = keys[:, :LATENT].reshape(-1, LATENT // _SCALE_GROUP, _SCALE_GROUP)
    scale = latent.abs().amax(-1, keepdim=True).clamp(min=1e-6) / _FP8_MAX
    values = (latent / scale).to(torch.float8_e4m3fn).reshape(-1, LATENT)
    rope = keys[:, LATENT:].to(torch.bfloat16).contiguous()
    return torch.cat(
        [
            values.view(torch.uint8),
            scale.reshape(-1, LATENT // _SCALE_GROUP).contiguous().view(torch.uint8),
            rope.view(torch.uint8),
        ],
        dim=1,
    )


def unpack(rows, kv_dtype):
    """The inverse of pack, for rows [..., width]: float32 [..., 576]."""
    if kv_dtype == "bfloat16":
        return rows.to(torch.float32)
    scales = LATENT // _SCALE_GROUP
    values = rows[..., :LATENT].contiguous().view(torch.float8_e4m3fn).to(torch.float32)
    scale = rows[..., LATENT : LATENT + 4 * scales].contiguous().view(torch.float32)
    rope = rows[..., LATENT + 4 * scales :].contiguous().view(torch.bfloat16).to(torch.float32)
    shape = values.shape[:-1]
    latent = values.reshape(*shape, scales, _SCALE_GROUP) * scale[..., None]
    return torch.cat([latent.reshape(*shape, LATENT), rope], dim=-1)
