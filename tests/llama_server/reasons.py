"""Why a test of llama.cpp's server does not apply, or not in all its cases."""

from __future__ import annotations

from typing import Final

__all__ = ["FILES", "TESTS"]

_WORDS: Final = "looks for words of the model stories260K, or counts its tokens"
_TEMPLATE: Final = "a server with another chat template than the model's own: there is no such flag"
_CORS: Final = "credentials are never allowed, and the lists of methods and headers are others"
_SEED: Final = "--seed for all requests: here it is a field of each"
_METRICS: Final = "the names of our metrics are Prometheus' own kind, see metrics.md"
_PREFILL: Final = f"{_TEMPLATE}; an assistant's last message is not continued"

#: files of which nothing is run.
FILES: Final = {
    "test_compat_anthropic.py": "no /v1/messages",
    "test_compat_gcp.py": "no /predict",
    "test_compat_oai_responses.py": "no /v1/responses",
    "test_infill.py": "no /infill",
    "test_kv_keep_only_active.py": "idle slots keep their caches on the nodes",
    "test_lora.py": "no adapters",
    "test_mcp_servers.py": "no MCP servers",
    "test_proxy.py": "no proxy for MCP servers",
    "test_rerank.py": "no /rerank",
    "test_router.py": "one server, one model",
    "test_sleep.py": "the engine does not go to sleep",
    "test_slot_save.py": "slots are not saved to files",
    "test_speculative.py": "no draft models",
    "test_stream.py": "a stream cannot be taken up again, and there is one model",
    "test_template.py": _TEMPLATE,
    "test_tool_call.py": f"{_TEMPLATE}; the slow ones want models of a hub",
    "test_tools_builtin.py": "the server runs no tools",
    "test_vision_api.py": "text only",
}

#: tests, by name.
TESTS: Final = {
    f"{file}.py::test_{name}": reason
    for file, reasons in {
        "test_basic": {
            "load_split_model": "another model of the hub; split files: test_engine_models.py",
            "no_ui": "the page cannot be switched off",
            "server_model_aliases_and_tags": "one alias, no tags",
            "server_multiple_addresses": "one address",
            "server_props": _SEED,
            "server_slots": "/slots cannot be switched off",
        },
        "test_chat_completion": {
            "apply_chat_template": _TEMPLATE,
            "chat_completion": f"{_WORDS}; two cases: {_TEMPLATE}",
            "chat_completion_cached_tokens": _WORDS,
            "chat_completion_stream": _WORDS,
            "chat_completion_with_openai_library": _WORDS,
            "chat_template": _TEMPLATE,
            "chat_template_assistant_prefill": _PREFILL,
            "chat_template_continue_final_message_mutual_exclusion": _PREFILL,
            "chat_template_continue_final_message_vllm_compat": _PREFILL,
            "context_size_exceeded": "the error is OpenAI's: code context_length_exceeded",
            "context_size_exceeded_stream": "the error is OpenAI's: code context_length_exceeded",
            "invalid_chat_completion_req": "two answers in a row are the template's to refuse",
            "return_progress": "no progress of prompts",
            "verbose_debug": "no __verbose",
        },
        "test_completion": {
            "cache_vs_nocache_prompt": "skipped there as well",
            "completion": _WORDS,
            "completion_prompt_cache": f"needs a cache that slots share (--kv-unified); {_WORDS}",
            "completion_response_fields": "no response_fields",
            "completion_stream": _WORDS,
            "completion_stream_vs_non_stream": _SEED,
            "completion_stream_with_openai_library": _WORDS,
            "completion_stream_with_openai_library_stops": "another model of the hub",
            "completion_with_openai_library": _WORDS,
            "completion_with_tokens_input": "--temp for all requests; no lists that mix tokens "
            "with texts",
            "logit_bias": "a bias names a token by its number; two cases by text",
            "n_probs_post_backend_sampling": "no probabilities after sampling",
            "n_probs_post_sampling": "no probabilities after sampling",
        },
        "test_ctx_shift": {
            "ctx_shift_disabled_short_prompt": _WORDS,
            "ctx_shift_enabled": "a context that is full ends the text",
        },
        "test_embedding": {
            "embedding_mixed_input": "no lists that mix tokens with texts",
            "embedding_pooling_none": "one vector for each text",
            "embedding_pooling_none_oai": "one vector for each text",
            "embedding_usage_multiple": "counts tokens of bge-small",
            "embedding_usage_single": "counts tokens of bge-small",
        },
        "test_metrics": {
            "metrics_disabled": "/metrics cannot be switched off",
            "metrics_embedding_prompt_is_counted": _METRICS,
            "metrics_predicted_total_matches_requests": _METRICS,
            "metrics_prometheus_format": _METRICS,
            "metrics_prompt_processed_and_cached": _METRICS,
            "metrics_timings_on_prompt_progress": "no progress of prompts",
        },
        "test_security": {
            "access_static_assets_without_api_key": "the page has other files",
            "cors_options": _CORS,
            "cors_origins_defaults_to_localhost_with_tools_enabled": "the server runs no tools",
            "cors_proxy_only_forwards_explicit_proxy_headers": "no proxy for MCP servers",
            "local_media_file": "text only",
        },
    }.items()
    for name, reason in reasons.items()
}
