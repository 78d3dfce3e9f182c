resource "weir_portal" "this" {
  brand         = "Acme"
  accent        = "#1a73e8"
  offered_plans = [weir_plan.free.slug, weir_plan.pro.slug]
}
