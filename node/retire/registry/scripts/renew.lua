--[[
Renew a node's publish lease in one tenant.

KEYS[1] meta  KEYS[2] leases  KEYS[3] events
ARGV[1] term  ARGV[2] incarnation or ''
ARGV[3] node  ARGV[4] boot_id  ARGV[5] length of the lease in milliseconds
ARGV[6] highest commit sequence the node has seen  ARGV[7] id of an event it has seen, or ''
Returns {tail: id of the last event, sequence}; both must be applied before the lease is used.
Errors: TERMMISMATCH term | incarnation | lost | behind <sequence> | rewritten <tail> (the registry was
rolled back: its sequence is lower, or an event that the node saw is not in it),
NEEDREGISTER boot (a later boot replaced this one, or its lease ended a day ago: its joins are forgotten)
]]
if redis.call('EXISTS', KEYS[1]) == 0 then
  return refuse('TERMMISMATCH lost')
end
local refused = admit(KEYS[1])
if refused then
  return refused
end
local held = redis.call('HMGET', KEYS[1], 'sequence', 'tail')
local sequence, tail = held[1], held[2] or '0-0'
if tonumber(sequence) < tonumber(ARGV[6]) then
  return refuse('TERMMISMATCH behind ' .. sequence)
end
if ARGV[7] ~= '' and ARGV[7] ~= '0-0' and ARGV[7] ~= tail then
  local first = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1)[1]
  local trimmed = first and compare_ids(ARGV[7], first[1]) < 0
  if not trimmed and #redis.call('XRANGE', KEYS[3], ARGV[7], ARGV[7]) == 0 then
    return refuse('TERMMISMATCH rewritten ' .. tail)
  end
end

local now = now_ms()
local own = { boot = ARGV[4], end_ms = now + tonumber(ARGV[5]) }
local kept = {}
for _, lease in ipairs(read_leases(redis.call('HGET', KEYS[2], ARGV[3]))) do
  if lease.boot ~= own.boot then
    -- Ended for good: were it to come back, joins made since by its successor would be missing.
    kept[#kept + 1] = { boot = lease.boot, end_ms = lease.end_ms > now and lease.end_ms or 0 }
  elseif lease.end_ms <= now - FORGET_MS then
    return refuse('NEEDREGISTER boot')
  end
end
while #kept > 15 do
  table.remove(kept, 1)
end
kept[#kept + 1] = own
write_leases(KEYS[2], ARGV[3], kept)
return { tail, sequence }
