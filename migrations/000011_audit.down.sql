DROP TABLE audit_heads, audit;
