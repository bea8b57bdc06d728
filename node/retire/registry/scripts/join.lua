--[[
Make a node a gate of a scope, from its current version on.

KEYS[1] meta  KEYS[2] scopes  KEYS[3] joins  KEYS[4] leases
ARGV[1] term  ARGV[2] incarnation or ''
ARGV[3] scope  ARGV[4] node  ARGV[5] boot_id of the node
Returns {record, '0', node, node, ...}, the caller among the nodes.
Errors: NEEDREGISTER tenant | scope, TERMMISMATCH, SCOPECLOSED <version>
]]
local refused = admit(KEYS[1])
if refused then
  return refused
end
local held = redis.call('HGET', KEYS[2], ARGV[3])
if not held then
  return refuse('NEEDREGISTER scope')
end
local scope = unpack_scope(held)
if scope.cancelled then
  return refuse('SCOPECLOSED ' .. version(scope))
end
-- A join of an earlier boot stays only while that boot may still publish under its lease.
local now, running = now_ms(), {}
for _, lease in ipairs(read_leases(redis.call('HGET', KEYS[4], ARGV[4]))) do
  running[lease.boot] = lease.end_ms > now
end
for _, member in ipairs(below(KEYS[3], ARGV[3] .. '\0' .. ARGV[4])) do
  local boot = string.match(member, '(%Z+)$')
  if boot ~= ARGV[5] and not running[boot] then
    redis.call('ZREM', KEYS[3], member)
  end
end
redis.call('ZADD', KEYS[3], 0, table.concat({ ARGV[3], ARGV[4], ARGV[5] }, '\0'))
return { held, '0', unpack(joined_nodes(KEYS[3], ARGV[3])) }
