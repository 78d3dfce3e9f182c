DROP TABLE usage_writers, usage_subjects, usage_days, usage_hours, usage_minutes;
