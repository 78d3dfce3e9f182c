from weir_client import Begun, Hooks


class PrintHooks(Hooks):
    def begin(self, call):
        return Begun(end=lambda result: print(call.name, result.duration_ms, result.error or "ok"))

    def breaker_changed(self, before, after):
        print("weir breaker:", after)
